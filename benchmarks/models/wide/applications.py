"""The families of ``keras.applications``, with fewer blocks where a whole network takes too long to
trace.

The constructors with free sizes are private to Keras; what differs from the public networks is the
depth alone.
"""

from __future__ import annotations

from benchmarks.models.wide.parts import pooled_logits
from benchmarks.models.wide.registry import Numbers, Values, wide

_CLASSES = 10
_LABEL = Numbers(_CLASSES)
_SMALL_IMAGE = [Values((64, 64, 3))]
_IMAGE = [Values((96, 96, 3))]


def _options(x):
    return {
        "input_tensor": x,
        "weights": None,
        "classes": _CLASSES,
        "classifier_activation": None,
    }


@wide("plain convolutions", 8, _SMALL_IMAGE, _LABEL)
def vgg16(keras, x):
    """VGG-16 (Simonyan and Zisserman 2014), on small images without its wide dense layers."""
    model = keras.applications.VGG16(include_top=False, weights=None, input_tensor=x)
    return pooled_logits(keras.layers, model.output)


@wide("residual convolutions", 8, _SMALL_IMAGE, _LABEL)
def resnet_v2(keras, x):
    """A ResNet with activations before the convolutions (He et al. 2016), two blocks a stage."""
    from keras.src.applications import resnet

    def stages(x):
        stage = resnet.stack_residual_blocks_v2
        x = stage(x, 64, 2, stride1=2, name="conv2")
        x = stage(x, 128, 2, stride1=2, name="conv3")
        x = stage(x, 256, 2, stride1=2, name="conv4")
        return stage(x, 512, 2, stride1=1, name="conv5")

    model = resnet.ResNet(stages, True, True, name="resnet", weights_name="", **_options(x))
    return model.output


@wide("densely connected convolutions", 8, _SMALL_IMAGE, _LABEL)
def densenet(keras, x):
    """DenseNet (Huang et al. 2016) with blocks of 3, 6, 8 and 4 layers."""
    from keras.src.applications import densenet as module

    return module.DenseNet([3, 6, 8, 4], **_options(x)).output


@wide("factorized convolutions", 8, [Values((24, 24, 192))], _LABEL)
def inception(keras, x):
    """Blocks of Inception v3 (Szegedy et al. 2015): in one branch rows and columns are apart."""
    layers = keras.layers

    def conv(x, channels, rows, columns):
        x = layers.Conv2D(channels, (rows, columns), padding="same", use_bias=False)(x)
        x = layers.BatchNormalization(scale=False)(x)
        return layers.ReLU()(x)

    def block(x, side, width):
        alone = conv(x, width, 1, 1)
        pooled = layers.AveragePooling2D(3, 1, padding="same")(x)
        pooled = conv(pooled, width, 1, 1)
        apart = conv(x, width, 1, 1)
        apart = conv(apart, width, 1, side)
        apart = conv(apart, width, side, 1)
        square = conv(x, width, 1, 1)
        square = conv(square, width, 3, 3)
        return layers.Concatenate()([alone, pooled, apart, square])

    x = block(x, 5, 64)
    x = layers.MaxPooling2D()(x)
    x = block(x, 7, 128)
    x = block(x, 7, 128)
    return pooled_logits(layers, x)


@wide("factorized convolutions", 8, [Values((24, 24, 128))], _LABEL)
def inception_resnet(keras, x):
    """Blocks of Inception-ResNet v2 (Szegedy et al. 2016): joined branches with residuals."""
    from keras.src.applications import inception_resnet_v2 as module

    for kind in ("block35", "block17"):
        for index in range(3):
            x = module.inception_resnet_block(x, 0.17, kind, index)
        x = keras.layers.MaxPooling2D()(x)
    return pooled_logits(keras.layers, x)


@wide("separable convolutions", 8, [Values((24, 24, 128))], _LABEL)
def xception(keras, x):
    """Blocks of Xception (Chollet 2016): separable convolutions with residuals."""
    layers = keras.layers

    def twice(y):
        for _ in range(2):
            y = layers.ReLU()(y)
            y = layers.SeparableConv2D(256, 3, padding="same", use_bias=False)(y)
            y = layers.BatchNormalization()(y)
        return y

    # A block that halves the image, and two that keep it.
    y = twice(x)
    y = layers.MaxPooling2D(3, 2, padding="same")(y)
    x = layers.Add()([y, layers.Conv2D(256, 1, 2)(x)])
    for _ in range(2):
        x = layers.Add()([twice(x), x])
    return pooled_logits(layers, x)


@wide("depthwise convolutions", 16, _IMAGE, _LABEL)
def mobilenet(keras, x):
    """MobileNet (Howard et al. 2017): depthwise convolutions alone."""
    return keras.applications.MobileNet(input_shape=(96, 96, 3), **_options(x)).output


@wide("squeeze-excite and depthwise", 16, _IMAGE, _LABEL)
def mobilenet_v3(keras, x):
    """MobileNet v3, small (Howard et al. 2019): squeeze-excite, hard swish, depthwise convolutions
    of 5 × 5.
    """
    model = keras.applications.MobileNetV3Small(
        input_shape=(96, 96, 3), dropout_rate=0.0, **_options(x)
    )
    return model.output


@wide("squeeze-excite and depthwise", 8, _IMAGE, _LABEL)
def efficientnet(keras, x):
    """EfficientNet (Tan and Le 2019), B0's widths with a third of its depth: squeeze-excite, swish,
    depthwise.
    """
    from keras.src.applications import efficientnet as module

    names = {"name": "efficientnet", "weights_name": ""}
    model = module.EfficientNet(1.0, 0.34, 96, **names, **_options(x))
    return model.output


@wide("squeeze-excite and depthwise", 8, _IMAGE, _LABEL)
def efficientnet_v2(keras, x):
    """EfficientNet v2 (Tan and Le 2021), B0's widths with a third of its depth: its first stages
    are not depthwise.
    """
    from keras.src.applications import efficientnet_v2 as module

    names = {"blocks_args": "default", "name": "efficientnetv2-b0", "weights_name": ""}
    model = module.EfficientNetV2(1.0, 0.34, 96, **names, **_options(x))
    return model.output


@wide("separable convolutions", 8, _SMALL_IMAGE, _LABEL)
def nasnet(keras, x):
    """NASNet (Zoph et al. 2017), one cell a stage: many separable convolutions, and additions."""
    from keras.src.applications import nasnet as module

    shape = (64, 64, 3)
    model = module.NASNet(shape, 288, 1, 32, False, 2, default_size=64, **_options(x))
    return model.output


@wide("depthwise convolutions", 8, _SMALL_IMAGE, _LABEL)
def convnext(keras, x):
    """ConvNeXt (Liu et al. 2022), a third of the tiny one's depth: 7 × 7 depthwise, layer
    normalization, Gelu.
    """
    from keras.src.applications import convnext as module

    names = {"name": "convnext", "weights_name": ""}
    model = module.ConvNeXt([1, 1, 3, 1], [96, 192, 384, 768], **names, **_options(x))
    return model.output
