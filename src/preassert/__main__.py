import sys

from preassert.cli import main

sys.exit(main())
