"""A plug-in that ends whoever imports it, as scripts without ``if __name__ == "__main__"`` do."""

import sys

sys.exit(3)
