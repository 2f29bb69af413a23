"""``python -m dlplacer``."""

from dlplacer.cli.main import main

raise SystemExit(main())
