"""Dropout in kernels of attention: whether the weights of a thread are kept, drawn or read.

``draw`` comes before the products of a tile; ``keeps`` tells whether a score is kept.
"""

from __future__ import annotations

#: Bits by draws. One has 80 operations, so the loop over them is not unrolled.
DRAWN = """
  // Whether weights are kept: a bit for each score of a thread.
  static constexpr int PER_WORD = R * C < 32 ? R * C : 32;
  template <bool HOLDS_KEYS>
  static constexpr int WORDS = (R * C + 31) / 32;
  template <bool HOLDS_KEYS>
  static __device__ __forceinline__ void draw(unsigned* kept, const Head& x, int first_row, int first_column) {
    if (!DROPS) return;
#pragma unroll
    for (int word = 0; word < WORDS<HOLDS_KEYS>; ++word) {
      kept[word] = 0;
#pragma unroll 2
      for (int i = 0; i < PER_WORD; ++i) {
        const int own = word * PER_WORD + i, a = first_row + row(own / C), b = first_column + column(own % C);
        const int t = HOLDS_KEYS ? b : a, s = HOLDS_KEYS ? a : b;
        const unsigned long long counter = x.counter + (unsigned long long)t * KEYS + s;
        kept[word] |= (unsigned)(tvmfun_threefry(x.key[0], x.key[1], counter) >> 9 < KEPT_BELOW) << i;
      }
    }
  }
  template <bool HOLDS_KEYS>
  static __device__ __forceinline__ bool keeps(const unsigned* kept, int r, int c, int first_column) {
    return !DROPS || kept[(r * C + c) / PER_WORD] >> (r * C + c) % PER_WORD & 1;
  }
"""

#: Bits of the words of ``dropout_bits``, which are read before the products, which take longer.
READ = """
  // The rows in a tile of 16, and the columns in a word, that a thread has: if they are keys, they share a word.
  static constexpr int SHARING_ROWS = R / M, SHARING_COLUMNS = COLUMNS < 32 ? C : C * 32 / COLUMNS;
  template <bool HOLDS_KEYS>
  static constexpr int WORDS = HOLDS_KEYS ? M * C : R * C / SHARING_COLUMNS;
  template <bool HOLDS_KEYS>
  static __device__ __forceinline__ void draw(unsigned* kept, const Head& x, int first_row, int first_column) {
    if (!DROPS) return;
    constexpr int PER_ROW = HOLDS_KEYS ? C : C / SHARING_COLUMNS;
#pragma unroll
    for (int word = 0; word < WORDS<HOLDS_KEYS>; ++word) {
      const int a = first_row + row(word / PER_ROW * (HOLDS_KEYS ? SHARING_ROWS : 1));
      const int b = first_column + column(word % PER_ROW * (HOLDS_KEYS ? 1 : SHARING_COLUMNS));
      const int t = HOLDS_KEYS ? b : a, s = HOLDS_KEYS ? a : b;
      kept[word] = t < QUERIES && s < KEYS ? x.kept[t * WORDS_PER_QUERY + s / 32] : 0;
    }
  }
  template <bool HOLDS_KEYS>
  static __device__ __forceinline__ bool keeps(const unsigned* kept, int r, int c, int first_column) {
    if (!DROPS) return true;
    // The bit of the first of the keys that share a word depends on the thread; the distance to the others is constant.
    const int first_r = r - r % SHARING_ROWS, first_c = c - c % SHARING_COLUMNS;
    const unsigned first = (HOLDS_KEYS ? row(first_r) : first_column + column(first_c)) & 31;
    const int after = HOLDS_KEYS ? row(r) - row(first_r) : column(c) - column(first_c);
    const int word = HOLDS_KEYS ? r / SHARING_ROWS * C + c : (r * C + c) / SHARING_COLUMNS;
    return kept[word] >> first >> after & 1;
  }
"""
