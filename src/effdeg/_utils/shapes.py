"""Shape annotations: jaxtyping's where it is installed (the tests check them), plain tensors elsewhere."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:
        # The core needs only torch and numpy; without jaxtyping a shape is documentation.
        class _Shaped:
            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Float = Int = _Shaped

__all__ = ["Bool", "Float", "Int"]
