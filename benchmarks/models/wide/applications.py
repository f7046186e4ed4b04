"""The families of ``keras.applications``, with fewer blocks where a whole network takes too long to
trace.

The constructors with free sizes are private to Keras; what differs from the public networks is the
depth alone.
"""

from __future__ import annotations

from typing import Any

from benchmarks.models.wide.registry import Numbers, Values, wide

FAMILY = "keras.applications"
_CLASSES = 10
_LABEL = Numbers(_CLASSES)


def _image(pixels: int) -> list[Values]:
    return [Values((pixels, pixels, 3))]


def _options(x: Any) -> dict[str, Any]:
    return {
        "input_tensor": x,
        "weights": None,
        "classes": _CLASSES,
        "classifier_activation": None,
    }


@wide("plain convolutions", 8, _image(64), _LABEL)
def vgg16(keras: Any, x: Any) -> Any:
    """VGG-16 (Simonyan and Zisserman 2014), on small images without its wide dense layers."""
    x = keras.applications.VGG16(include_top=False, weights=None, input_tensor=x).output
    return keras.layers.Dense(_CLASSES)(keras.layers.GlobalAveragePooling2D()(x))


@wide("residual convolutions", 8, _image(64), _LABEL)
def resnet_v2(keras: Any, x: Any) -> Any:
    """A ResNet with activations before the convolutions (He et al. 2016), two blocks a stage."""
    from keras.src.applications import resnet as module

    def stages(x: Any) -> Any:
        for number, channels in enumerate((64, 128, 256, 512), 2):
            x = module.stack_residual_blocks_v2(
                x, channels, 2, stride1=1 if number == 5 else 2, name=f"conv{number}"
            )
        return x

    return module.ResNet(stages, True, True, name="resnet", weights_name="", **_options(x)).output


@wide("densely connected convolutions", 8, _image(64), _LABEL)
def densenet(keras: Any, x: Any) -> Any:
    """DenseNet (Huang et al. 2016) with blocks of 3, 6, 8 and 4 layers."""
    from keras.src.applications import densenet as module

    return module.DenseNet([3, 6, 8, 4], **_options(x)).output


@wide("factorized convolutions", 8, [Values((24, 24, 192))], _LABEL)
def inception(keras: Any, x: Any) -> Any:
    """Blocks of Inception v3 (Szegedy et al.

    2015): branches, of which one has rows and columns apart.
    """
    layers = keras.layers

    def conv(x: Any, channels: int, rows: int, columns: int) -> Any:
        x = layers.Conv2D(channels, (rows, columns), padding="same", use_bias=False)(x)
        return layers.ReLU()(layers.BatchNormalization(scale=False)(x))

    for side, width in ((5, 64), (7, 128), (7, 128)):
        parts = [
            conv(x, width, 1, 1),
            conv(layers.AveragePooling2D(3, 1, padding="same")(x), width, 1, 1),
        ]
        parts.append(conv(conv(conv(x, width, 1, 1), width, 1, side), width, side, 1))
        parts.append(conv(conv(x, width, 1, 1), width, 3, 3))
        x = layers.Concatenate()(parts)
        x = layers.MaxPooling2D()(x) if side == 5 else x
    return layers.Dense(_CLASSES)(layers.GlobalAveragePooling2D()(x))


@wide("factorized convolutions", 8, [Values((24, 24, 128))], _LABEL)
def inception_resnet(keras: Any, x: Any) -> Any:
    """Blocks of Inception-ResNet v2 (Szegedy et al.

    2016): branches, joined, added to what came in.
    """
    from keras.src.applications import inception_resnet_v2 as module

    for kind in ("block35", "block17"):
        for index in range(3):
            x = module.inception_resnet_block(x, 0.17, kind, index)
        x = keras.layers.MaxPooling2D()(x)
    return keras.layers.Dense(_CLASSES)(keras.layers.GlobalAveragePooling2D()(x))


@wide("separable convolutions", 8, [Values((24, 24, 128))], _LABEL)
def xception(keras: Any, x: Any) -> Any:
    """Blocks of Xception (Chollet 2016): separable convolutions with residuals."""
    layers = keras.layers
    for channels, strides in ((256, 2), (256, 1), (256, 1)):
        y = x
        for _ in range(2):
            y = layers.SeparableConv2D(channels, 3, padding="same", use_bias=False)(
                layers.ReLU()(y)
            )
            y = layers.BatchNormalization()(y)
        y = layers.MaxPooling2D(3, strides, padding="same")(y) if strides > 1 else y
        x = layers.Add()([y, layers.Conv2D(channels, 1, strides)(x) if strides > 1 else x])
    return layers.Dense(_CLASSES)(layers.GlobalAveragePooling2D()(x))


@wide("depthwise convolutions", 16, _image(96), _LABEL)
def mobilenet(keras: Any, x: Any) -> Any:
    """MobileNet (Howard et al. 2017): depthwise convolutions alone."""
    return keras.applications.MobileNet(input_shape=(96, 96, 3), **_options(x)).output


@wide("squeeze-excite and depthwise", 16, _image(96), _LABEL)
def mobilenet_v3(keras: Any, x: Any) -> Any:
    """MobileNet v3, small (Howard et al.

    2019): squeeze-excite, hard swish, depthwise convolutions of 5 × 5.
    """
    options = _options(x)
    return keras.applications.MobileNetV3Small(
        input_shape=(96, 96, 3), dropout_rate=0.0, **options
    ).output


@wide("squeeze-excite and depthwise", 8, _image(96), _LABEL)
def efficientnet(keras: Any, x: Any) -> Any:
    """EfficientNet (Tan and Le 2019), B0's widths with a third of its depth: squeeze-excite, swish,
    depthwise.
    """
    from keras.src.applications import efficientnet as module

    return module.EfficientNet(
        1.0, 0.34, 96, name="efficientnet", weights_name="", **_options(x)
    ).output


@wide("squeeze-excite and depthwise", 8, _image(96), _LABEL)
def efficientnet_v2(keras: Any, x: Any) -> Any:
    """EfficientNet v2 (Tan and Le 2021), B0's widths with a third of its depth: its first stages
    are not depthwise.
    """
    from keras.src.applications import efficientnet_v2 as module

    model = module.EfficientNetV2(
        1.0,
        0.34,
        96,
        blocks_args="default",
        name="efficientnetv2-b0",
        weights_name="",
        **_options(x),
    )
    return model.output


@wide("separable convolutions", 8, _image(64), _LABEL)
def nasnet(keras: Any, x: Any) -> Any:
    """NASNet (Zoph et al.

    2017), one cell a stage: many small separable convolutions and additions.
    """
    from keras.src.applications import nasnet as module

    return module.NASNet((64, 64, 3), 288, 1, 32, False, 2, default_size=64, **_options(x)).output


@wide("depthwise convolutions", 8, _image(64), _LABEL)
def convnext(keras: Any, x: Any) -> Any:
    """ConvNeXt (Liu et al.

    2022), a third of the tiny one's depth: 7 × 7 depthwise, layer normalization, Gelu.
    """
    from keras.src.applications import convnext as module

    model = module.ConvNeXt(
        [1, 1, 3, 1], [96, 192, 384, 768], name="convnext", weights_name="", **_options(x)
    )
    return model.output
