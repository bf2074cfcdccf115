"""Frames come out whole, whatever stands between them and however the bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.tensorrt.worker.frames import MOST_VALUES, Reader, Unfit
from halfwise.tensorrt.worker.worker import LENGTHS, MAGIC, Unpacker, pack

# Parts of the marker, and whole markers with a nonsense header behind them.
_noise = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.integers(1, len(MAGIC) - 1).map(lambda n: MAGIC[:n]),
        st.just(MAGIC + b"\xff" * 12),
        st.just(MAGIC + b"\x00\x00\x00\x02" + b"\x00" * 8 + b"[]"),
        st.just(MAGIC + b"\x00\x00\x00\x02" + b"\x00" * 8 + b"{!"),
    ),
    max_size=4,
).map(b"".join)
_headers = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9), max_size=3)
_payloads = st.binary(max_size=60) | st.just(MAGIC * 2)


@given(st.lists(st.tuples(_noise, _headers, _payloads), max_size=5), st.data())
def test_any_noise_and_any_chunks(frames, data):
    stream = b"".join(noise + pack(header, payload) for noise, header, payload in frames)
    unpacker, found, noise = Unpacker(), [], b""
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        for header, payload, between in unpacker.feed(stream[:count]):
            if header is None:
                noise += between
            else:
                found.append((header, payload))
        stream = stream[count:]
    assert found == [(header, payload) for _, header, payload in frames]
    assert noise == b"".join(noise for noise, _, _ in frames)


@given(st.binary())
def test_noise_alone_is_never_a_frame(data):
    unpacker = Unpacker()
    assert all(header is None for header, _, _ in unpacker.feed(data.replace(MAGIC, b"")))


def read(data, *, piece=7, admit=lambda _header, _size: None):
    """Return the frames and the noise in `data`, which comes in pieces."""
    reader, frames, noise = Reader(), [], b""
    for start in range(0, len(data), piece):
        reader.take(data[start : start + piece])
        while (found := reader.next(admit)) is not None:
            if isinstance(found, bytes):
                noise += found
            else:
                frames.append((found[0], bytes(found[1])))
    return frames, noise


_plain = st.lists(st.binary(max_size=40) | st.just(MAGIC[:-1]), max_size=3).map(b"".join)


@given(st.lists(st.tuples(_plain, _headers, _payloads), max_size=5), st.integers(1, 200))
def test_this_side_reads_what_the_worker_packs(frames, piece):
    frames = [(noise.replace(MAGIC, b""), *rest) for noise, *rest in frames]
    stream = b"".join(noise + pack(header, payload) for noise, header, payload in frames)
    assert read(stream, piece=piece) == (
        [(header, payload) for _, header, payload in frames],
        b"".join(noise for noise, _, _ in frames),
    )


@pytest.mark.parametrize(
    ("lengths", "told"),
    [
        ((2, 1 << 60), "a payload of 1152921504606846976 bytes"),
        ((1 << 31, 0), "a header of 2147483648 bytes"),
    ],
)
def test_a_length_is_refused_before_memory_is_taken(lengths, told):
    with pytest.raises(Unfit, match=told):
        read(MAGIC + LENGTHS.pack(*lengths) + b"{}")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{!",
        b"\xff{}",
        b'{"a": NaN}',
        b'{"a": "\\ud800"}',
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": ' + b"9" * 10_000 + b"}",
        b'{"a": [' + b"[]," * MOST_VALUES + b"[]]}",
    ],
)
def test_a_header_that_cannot_be_read(text):
    with pytest.raises(Unfit, match="sends a header"):
        read(MAGIC + LENGTHS.pack(len(text), 0) + text, piece=1 << 20)


def test_a_header_is_looked_at_before_its_payload_comes():
    def admit(header, size):
        assert (header, size) == ({"a": 1}, 1 << 30)
        raise Unfit("is not wanted")

    with pytest.raises(Unfit, match="is not wanted"):
        read(
            pack({"a": 1})[: -len(b'{"a": 1}') - 8] + (1 << 30).to_bytes(8, "big") + b'{"a": 1}',
            admit=admit,
        )
