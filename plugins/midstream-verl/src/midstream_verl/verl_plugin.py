"""What `import verl` loads: verl finds this module by the entry-point group `verl.plugins`.

In processes of a run that `midstream train --learner verl` started, it registers midstream's trainer. In all others it
does nothing.
"""

import os
import traceback

from midstream_verl import RUN

if RUN in os.environ:
    try:
        from midstream_verl import verl_trainer as verl_trainer
    except Exception:  # verl drops it, whatever it is, and would then miss the trainer
        traceback.print_exc()
        raise
