"""Shape annotations: jaxtyping's where it is installed (the tests check them), plain tensors elsewhere."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Float, Int
else:
    try:
        from jaxtyping import Float, Int
    except ImportError:
        # The core needs only torch and numpy; without jaxtyping a shape is documentation.
        class _Shaped:
            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Float = Int = _Shaped

__all__ = ["Float", "Int"]
