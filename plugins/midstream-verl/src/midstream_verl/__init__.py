"""Training on a cluster with verl on Ray: midstream's agents, rewards and losses, verl's servers and sharded updates.

`midstream train RECIPE --learner verl` goes this way:

    launch.py        in this process: checks, `main_ppo` as a process, progress, the exported weights
    verl_config.py   a recipe as verl's settings, and what is refused
    verl_plugin.py   what `import verl` loads in each of verl's processes
    verl_trainer.py  in verl's driver: its trainer with midstream's rows, mini-batches and loss
    session.py       in verl's driver: rollouts, records and evaluations, as in a run of one process
    engine.py        an engine that samples through verl's token servers
    rows.py          rows as verl takes them

Only `verl_trainer.py` imports verl.
"""

RUN = "MIDSTREAM_RUN"  # the variable that names the run's directory in all of verl's processes
DRIVER_LOCK = "driver.lock"  # held by verl's driver, in `verl/` of the run directory
