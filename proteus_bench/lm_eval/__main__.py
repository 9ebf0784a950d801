"""lm-eval's command line with our models.

python -m proteus_bench.lm_eval --model proteus --model_args model=gdn+proteus,seed=0 --tasks ...
"""

import proteus_bench.lm_eval  # noqa: F401  registers the model

if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
