"""With EFFDEG_CHECK_SHAPES=1, as `make test` has it, the shapes in the signatures of the maths are checked."""

import os

from jaxtyping import install_import_hook

from tests import shapes  # noqa: F401  (the hook below finds it by name)

if os.environ.get("EFFDEG_CHECK_SHAPES"):
    with install_import_hook("effdeg.functional", "tests.shapes.typechecker"):
        import effdeg.functional  # noqa: F401
