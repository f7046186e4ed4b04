# shellcheck shell=sh
# amp_tf's own reading of the environment, so that the banner cannot say something else than what will happen.
python3 - <<'PROGRAM' || echo "amp_tf      could not be asked; run: amp-tf doctor"
import amp_tf
from amp_tf.config import AmpConfig, Switches
from amp_tf.errors import ConfigError

try:
    switches, config = Switches.from_env(), AmpConfig.from_env()
except ConfigError as error:
    state = f"off, because of a bad value. {error}"
else:
    if switches.graph_rewrite:
        state = f"ON, precision {config.precision}; loss scaling {'on for float16' if switches.loss_scaling else 'off'}"
    else:
        state = "off. Turn it on with -e TF_ENABLE_AUTO_MIXED_PRECISION=1"
print(f"amp_tf      {amp_tf.__version__}, mixed precision {state}\n")
PROGRAM
