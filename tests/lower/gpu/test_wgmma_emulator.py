"""The emulator's products of warpgroups: matrices in every layout of descriptors, written by hand."""

import numpy as np
import pytest
from support.cuda_emulator import GXX, EmulationError, run

pytestmark = [
    pytest.mark.skipif(GXX is None, reason="there is no g++, which compiles the emulated kernels"),
    pytest.mark.slow,
]

# A product of 64 x 16 by 16 x 128 numbers whose images are copied to shared memory as they are.
KERNEL = r"""
extern "C" __global__ void product(float* c, const unsigned* images, unsigned long long a, unsigned long long b) {
  extern __shared__ __align__(1024) unsigned memory[];
  for (int i = threadIdx.x; i < WORDS; i += 128) memory[i] = images[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  float d[64];
  for (int i = 0; i < 64; i++) d[i] = 1;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("{ .reg .pred adds; setp.ne.b32 adds, 1, 0; "
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {NUMBERS}, %64, %65, adds, 1, 1, A_ROWS, B_ROWS; }"
               : OPERANDS : "l"(a), "l"(b));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 64; i++) {
    int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
    c[row * 128 + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = d[i];
  }
}
"""
NUMBERS = ", ".join(f"%{i}" for i in range(64))
OPERANDS = ", ".join(f'"+f"(d[{i}])' for i in range(64))
#: The number of a layout in a descriptor, by the bytes of its lines.
MODES = {128: 1, 64: 2, 32: 3}
# The part of shared memory of each matrix, in bytes.
PART = 16384


def image(matrix, line_bytes, terms_are_neighbours):
    """A swizzled matrix of rows and terms in memory, and the bits of its descriptor without its address.

    Lines of neighbours lie in groups of eight; in line i of these, chunks of 16 bytes change places by the number of
    their 128-byte line. Neighbours that do not fit one line are in another part of the memory.
    """
    lines = matrix if terms_are_neighbours else matrix.T
    groups = np.split(lines, range(line_bytes // 2, lines.shape[1], line_bytes // 2), axis=1)
    memory = np.zeros(PART // 2, np.float16)
    distance = PART // 2 // max(4, len(groups))  # in elements, more than the lines need
    for g, group in enumerate(groups):
        for i, line in enumerate(group):
            for chunk in range(line.size // 8):
                start = i * line_bytes
                exchanged = chunk ^ (start // 128 % (line_bytes // 16))
                at = g * distance + start // 2 + exchanged * 8
                memory[at : at + 8] = line[chunk * 8 : chunk * 8 + 8]
    stride, leading = 8 * line_bytes, distance * 2
    return memory, MODES[line_bytes] << 62 | stride >> 4 << 32 | leading >> 4 << 16


def product(a, b, line_bytes=128, a_by_term=True, b_by_term=True, start=0, first=0):
    """One plus the emulated product of 16 terms of ``a``, from ``first`` on, and ``b``; ``a`` begins at ``start``."""
    (a_image, a_bits), (b_image, b_bits) = image(a, line_bytes, a_by_term), image(b.T, 128, b_by_term)
    images = np.concatenate([np.zeros(start // 2, np.float16), a_image, b_image])
    source = KERNEL.replace("NUMBERS", NUMBERS).replace("OPERANDS", OPERANDS).replace("WORDS", str(images.size // 2))
    source = source.replace("A_ROWS", str(int(not a_by_term))).replace("B_ROWS", str(int(not b_by_term)))
    c = np.zeros((64, 128), np.float32)
    numbers = [a_bits | start + first * 2 >> 4, b_bits | start + PART >> 4]
    run(source, "product", 1, 128, images.nbytes, [c, images.view(np.uint32), *map(np.uint64, numbers)])
    return c


def draw(terms=16):
    generator = np.random.default_rng(0)
    return (generator.normal(size=shape).astype(np.float16) for shape in ((64, terms), (16, 128)))


@pytest.mark.parametrize("line_bytes", MODES)
@pytest.mark.parametrize("a_by_term", [True, False])
@pytest.mark.parametrize("b_by_term", [True, False])
def test_swizzled_matrices(line_bytes, a_by_term, b_by_term):
    a, b = draw()
    c = product(a, b, line_bytes, a_by_term, b_by_term)
    np.testing.assert_allclose(c, a.astype(np.float32) @ b + 1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("first", [16, 48])
def test_terms_within_a_line(first):
    a, b = draw(terms=64)
    expected = a[:, first : first + 16].astype(np.float32) @ b + 1
    np.testing.assert_allclose(product(a, b, first=first), expected, rtol=1e-5, atol=1e-5)


def test_a_swizzled_matrix_begins_where_its_pattern_does():
    with pytest.raises(EmulationError, match="begins at a multiple of 1024 bytes, got 0x200"):
        product(*draw(), start=512)
