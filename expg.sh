. /work/scratch/env.sh; cd /work/scratch/src8; export PYTHONPATH=$PWD:$PWD/models:$PWD/kernels:$PWD/tasks
python -m proteus_bench train /work/scratch/exp/$1.toml --seed 0 --out /work/scratch/exp/zoo-$1; echo EXIT $?; date
