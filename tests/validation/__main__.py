"""`python -m tests.validation [--short]`: run the validation and print one table."""

import sys

from tests.validation.report import main

if __name__ == "__main__":
    sys.exit(main())
