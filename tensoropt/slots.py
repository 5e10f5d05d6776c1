"""Which slots each optimizer keeps beside a parameter; apart from their arithmetic, so that costs need no TensorFlow."""

SLOTS: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("momentum",),
    "nesterov": ("momentum",),
    "adam": ("m", "v"),
}
