"""Let one environment see another's packages, all but groupwise itself.

python borrow.py SITE_PACKAGES_OF_THE_LENDER SITE_PACKAGES_OF_THE_BORROWER
"""

import sys
from pathlib import Path

lender, borrower = Path(sys.argv[1]), Path(sys.argv[2])
for entry in lender.iterdir():
    # The editable install's own files (a .pth, its metadata) would bring the source tree back.
    if "groupwise" in entry.name or (borrower / entry.name).exists():
        continue
    (borrower / entry.name).symlink_to(entry)
