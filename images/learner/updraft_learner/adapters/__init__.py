"""Connect training libraries with the platform: their checkpoints, their metrics, and their end on a halt.

    from updraft_learner.adapters import lightning

    lightning.fit(trainer, model)  # in place of trainer.fit(model)

Each module is for one library and imports it: dcp (torch.distributed.checkpoint), huggingface, keras, lightgbm,
lightning, orbax, xgboost. In each, one function takes the place of the library's own call: it continues from the last
checkpoint of the platform if there is one, saves as often as the manifest says, logs the library's metrics, and leaves
with exit code 75 when the platform asks the program to stop. Outside the platform the same program runs unchanged;
its checkpoints are below `./updraft-out`.
"""
