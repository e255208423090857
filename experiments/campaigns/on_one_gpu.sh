#!/usr/bin/env bash
# Carry out a campaign of small networks that share one GPU: on_one_gpu.sh CAMPAIGN SECONDS DATA RUNS
# With NVIDIA's MPS their kernels run at the same time; without it, processes take turns, and it takes longer.
set -u
python=${PYTHON:-python}
file=$1 seconds=$2 data=$3 runs=$4
export EFFDEG_SHARE_GPU=1 OMP_NUM_THREADS=1
folder=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY=$folder/pipe CUDA_MPS_LOG_DIRECTORY=$folder/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d
if timeout 60 "$python" -c "import torch; torch.ones(1, device='cuda').sum().item()"; then
    echo "MPS: $(echo get_server_list | timeout 10 nvidia-cuda-mps-control 2>/dev/null | tr '\n' ' ')"
else
    echo "MPS does not work here: networks take turns"
    echo quit | timeout 10 nvidia-cuda-mps-control
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
fi
"$python" -m effdeg_lab campaign "$file" --seconds "$seconds" --data "$data" --runs "$runs" --device cuda
code=$?
echo quit | timeout 10 nvidia-cuda-mps-control >/dev/null 2>&1
exit $code
