import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from ipg.data.decode import decode
from ipg.data.errors import DataError


def saved(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


@pytest.fixture
def image(picture) -> Image.Image:
    return Image.open(io.BytesIO(picture(7, size=(40, 30))))


def channels_first(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_every_format(image: Image.Image, kind: str) -> None:
    pixels = decode(saved(image, kind), size=20)
    assert (pixels.shape, pixels.dtype) == ((3, 20, 20), np.uint8)
    assert pixels.flags.c_contiguous
    assert abs(pixels.astype(int) - decode(saved(image), size=20).astype(int)).mean() < 12


def test_squeezed_as_torchvision_resizes(image: Image.Image) -> None:
    from torchvision.transforms import functional

    assert np.array_equal(decode(saved(image), size=20), channels_first(functional.resize(image, [20, 20])))


def test_cropped_to_the_square_in_the_middle(image: Image.Image) -> None:
    square = image.crop((5, 0, 35, 30)).resize((20, 20), Image.Resampling.BILINEAR)
    assert np.array_equal(decode(saved(image), size=20, fit="crop"), channels_first(square))


def test_zoomed_like_256_then_224(picture) -> None:
    from torchvision.transforms import functional

    data = picture(3, size=(500, 375))
    official = functional.center_crop(functional.resize(Image.open(io.BytesIO(data)), [256, 256]), [224, 224])
    assert abs(decode(data, size=224, fit="zoom").astype(int) - channels_first(official).astype(int)).max() == 0


def test_an_image_of_the_right_size_is_left_alone(picture) -> None:
    data = picture(2, size=(16, 16))
    for fit in ("squeeze", "crop"):
        assert np.array_equal(decode(data, size=16, fit=fit), channels_first(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_rotated_as_exif_says(kind: str, orientation: int) -> None:
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:16, :16] = 255  # the upper left
    image, exif = Image.fromarray(pixels), Image.Exif()
    exif[0x0112] = orientation
    where = {2: (0, 1), 3: (1, 1), 4: (1, 0), 5: (0, 0), 6: (0, 1), 7: (1, 1), 8: (1, 0)}[orientation]
    bright = decode(saved(image, kind, exif=exif), size=32).reshape(3, 2, 16, 2, 16).mean(axis=(0, 2, 4))
    assert np.unravel_index(bright.argmax(), (2, 2)) == where
    assert bright.max() > 230


def test_sixteen_bits_keep_their_range() -> None:
    ramp = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8)
    for kind in ("PNG", "TIFF"):
        pixels = decode(saved(Image.fromarray(ramp), kind), size=8)
        assert np.array_equal(pixels[0], ramp // 257)
        assert np.array_equal(pixels[0], pixels[2])


def test_integers_and_floats_beyond_16_bits_are_refused() -> None:
    for values in (np.full((4, 4), 70_000, np.int32), np.full((4, 4), 0.5, np.float32)):
        with pytest.raises(DataError, match="beyond 16 bits; save it with 8 or 16"):
            decode(saved(Image.fromarray(values), "TIFF"), size=4)


def test_cmyk_becomes_rgb() -> None:
    pixels = decode(saved(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100), size=8)
    assert (pixels[0].min() > 240, pixels[1:].max() < 15) == (True, True)


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_grey_and_palette_images_have_three_channels(image: Image.Image, mode: str) -> None:
    converted = image.convert(mode)
    assert np.array_equal(decode(saved(converted), size=30, fit="crop")[:, 0], channels_first(converted)[:, 0, 5:35])


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_lies_over_white(mode: str) -> None:
    if mode == "P":
        clear = Image.new("P", (8, 8), 3)
        clear.putpalette([0, 0, 0] * 256)
        data = saved(clear, transparency=3)
    else:
        data = saved(Image.new(mode, (8, 8), (0, 0, 0, 0) if mode == "RGBA" else (0, 0)))
    assert decode(data, size=8).min() == 255


def test_half_transparent_is_half_white() -> None:
    assert set(decode(saved(Image.new("RGBA", (4, 4), (0, 0, 0, 128))), size=4).flatten().tolist()) == {127}


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "lime", "blue")]
    options = {"duration": 40} if kind != "TIFF" else {}
    pixels = decode(saved(frames[0], kind, save_all=True, append_images=frames[1:], **options), size=8)
    assert (pixels[0].min() > 230, pixels[1:].max() < 30) == (True, True)


def test_large_jpegs_are_decoded_at_a_fraction_with_the_same_look(picture) -> None:
    data = picture(5, size=(1600, 1200), kind="JPEG", quality=95)
    whole = Image.open(io.BytesIO(data)).resize((50, 50), Image.Resampling.BILINEAR)
    assert abs(decode(data, size=50).astype(int) - channels_first(whole).astype(int)).max() <= 3


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF"])
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_truncated_files(picture, kind: str, share: float) -> None:
    data = picture(1, size=(200, 200), kind=kind)
    with pytest.raises(DataError):
        decode(data[: int(share * len(data))], size=16)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b"not an image at all", "no image of a known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "no image of a known format"),  # would call another program
        (b"\xff\xd8\xff\xe0" + bytes(40), "."),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "."),
    ],
    ids=["empty", "text", "postscript", "jpeg", "png"],
)
def test_garbage(data: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        decode(data, size=16)


@pytest.mark.parametrize("side", [9_500, 40_000])
def test_an_image_that_unpacks_to_too_many_pixels(side: int) -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")
    with pytest.raises(DataError, match="more than 89,478,485"):
        decode(bomb, size=16)


@pytest.mark.parametrize(("options", "message"), [({"size": 0}, "size=0"), ({"size": 5000}, "1 to 4096")])
def test_sizes_out_of_range(picture, options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(picture(), **options)


def test_unknown_fit(picture) -> None:
    with pytest.raises(ValueError, match="fit='stretch' is unknown; there are squeeze, crop, zoom"):
        decode(picture(), size=8, fit="stretch")  # type: ignore[arg-type]
