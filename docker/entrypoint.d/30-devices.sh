# shellcheck shell=sh
# What is there to compute on, and what to do where a GPU image finds no driver.
if [ -r /proc/driver/nvidia/version ] || [ -e /dev/nvidiactl ]; then
    if command -v nvidia-smi >/dev/null 2>&1; then
        nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total --format=csv,noheader | sed 's/^/gpu         /'
    else
        echo "gpu         a driver is loaded, but nvidia-smi is not in the container: start it with --gpus all"
    fi
else
    case ${AMP_TF_IMAGE:-} in
        gpu-*)
            echo "gpu         none. TensorFlow will use the CPU."
            echo "            Does the host have the NVIDIA driver and the container toolkit? Then start the container with"
            echo "            --gpus all (Docker), --device nvidia.com/gpu=all (Podman) or --nv (Apptainer)."
            ;;
        *) echo "gpu         none (CPU image)" ;;
    esac
fi

amp_tf_flags=$(grep -m 1 -E '^(flags|Features)' /proc/cpuinfo 2>/dev/null | tr ' ' '\n' | grep -x -e avx512_bf16 -e amx_bf16 -e bf16 | tr '\n' ' ')
echo "cpu         $(nproc) cores, bfloat16 in hardware: ${amp_tf_flags:-no}"
unset amp_tf_flags

amp_tf_shm=$(df -k -P /dev/shm 2>/dev/null | awk 'NR == 2 { print int($2 / 1024) }')
if [ -n "$amp_tf_shm" ] && [ "$amp_tf_shm" -lt 1024 ]; then
    echo "shm         $amp_tf_shm MB is little for input pipelines and NCCL. Start the container with --ipc=host or --shm-size=1g,"
    echo "            and with --ulimit memlock=-1 --ulimit stack=67108864."
fi
unset amp_tf_shm
