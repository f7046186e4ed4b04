# shellcheck shell=sh
# Versions are read from the file that the build wrote: starting TensorFlow for a banner would take seconds.
amp_tf_version() { sed -n "s/^$1==//p; s/^$1 @ .*/checkout/p" /opt/venv/versions.txt | head -n 1; }

amp_tf_tensorflow=$(amp_tf_version tensorflow)
echo "image       ${AMP_TF_IMAGE:-unknown} (build ${NVIDIA_BUILD_ID:-unknown})"
echo "tensorflow  ${amp_tf_tensorflow:-$(amp_tf_version tensorflow_cpu) (CPU only)}"
echo "keras       $(amp_tf_version keras)"
echo "python      $(python3 -c 'import platform; print(platform.python_version())')"
unset -f amp_tf_version
unset amp_tf_tensorflow
