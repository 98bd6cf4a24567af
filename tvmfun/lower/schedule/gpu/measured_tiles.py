"""The fastest tiles of products, as measured: ``python -m gpu.tiles`` writes this file.

For an architecture, by the dtype of the factors and the numbers of matrices, rows, columns and terms: the key of the
tile, and the ranges that the terms are split into. An H100 measured those of the steps in docs/performance.md, with
their epilogues.
"""

MEASURED: dict[str, dict[tuple[str, int, int, int, int], tuple[str, int]]] = {
    "sm_90a": {
        ("bfloat16", 1, 768, 768, 4096): ("wgmma 128x192x64 64x192 4", 4),
        ("bfloat16", 1, 768, 768, 8192): ("wgmma 128x192x64 64x192 4", 4),
        ("bfloat16", 1, 768, 3072, 4096): ("wgmma 128x64x64 64x64 3", 1),
        ("bfloat16", 1, 768, 3072, 8192): ("wgmma 128x192x64 64x192 2", 2),
        ("bfloat16", 1, 3072, 768, 4096): ("wgmma 128x64x64 64x64 3", 1),
        ("bfloat16", 1, 3072, 768, 8192): ("wgmma 64x128x64 64x128 3", 1),
        ("bfloat16", 1, 4096, 768, 768): ("wgmma 128x64x64 64x64 3", 1),
        ("bfloat16", 1, 4096, 768, 3072): ("wgmma 64x128x64 64x128 3", 1),
        ("bfloat16", 1, 4096, 768, 30522): ("wgmma 128x192x64 64x192 4", 1),
        ("bfloat16", 1, 4096, 3072, 768): ("wgmma 128x192x64 64x192 2", 1),
        ("bfloat16", 1, 4096, 30522, 768): ("wgmma 128x256x64 64x256 4", 1),
        ("bfloat16", 1, 8192, 768, 768): ("wgmma 128x128x64 64x128 5", 1),
        ("bfloat16", 1, 8192, 768, 3072): ("wgmma 128x192x64 64x192 2", 1),
        ("bfloat16", 1, 8192, 768, 50257): ("wgmma 128x256x64 64x256 4", 2),
        ("bfloat16", 1, 8192, 3072, 768): ("wgmma 128x192x64 64x192 2", 1),
        ("bfloat16", 1, 8192, 50257, 768): ("wgmma 128x256x64 64x256 4", 1),
        ("bfloat16", 1, 30522, 768, 4096): ("wgmma 128x192x64 64x192 2", 1),
        ("bfloat16", 1, 50257, 768, 8192): ("wgmma 128x256x64 64x256 4", 1),
        ("tf32", 1, 768, 768, 4096): ("wgmma 128x192x32 64x192 2", 4),
        ("tf32", 1, 768, 768, 8192): ("wgmma 128x192x32 64x192 2", 4),
        ("tf32", 1, 768, 3072, 4096): ("wgmma 128x192x32 64x192 2", 4),
        ("tf32", 1, 768, 3072, 8192): ("wgmma 128x192x32 64x192 2", 4),
        ("tf32", 1, 3072, 768, 4096): ("wgmma 128x192x32 64x192 4", 4),
        ("tf32", 1, 3072, 768, 8192): ("wgmma 128x192x32 64x192 2", 4),
        ("tf32", 1, 4096, 768, 768): ("wgmma 128x192x32 64x192 4", 1),
        ("tf32", 1, 4096, 768, 3072): ("wgmma 128x192x32 64x192 4", 1),
        ("tf32", 1, 4096, 768, 30522): ("wgmma 128x256x32 64x256 4", 4),
        ("tf32", 1, 4096, 3072, 768): ("wgmma 128x128x32 64x128 3", 1),
        ("tf32", 1, 4096, 30522, 768): ("wgmma 128x128x32 64x128 3", 1),
        ("tf32", 1, 8192, 768, 768): ("wgmma 128x192x32 64x192 4", 1),
        ("tf32", 1, 8192, 768, 3072): ("wgmma 128x192x32 64x192 4", 1),
        ("tf32", 1, 8192, 768, 50257): ("wgmma 128x192x32 64x192 4", 1),
        ("tf32", 1, 8192, 3072, 768): ("wgmma 128x128x32 64x128 3", 1),
        ("tf32", 1, 8192, 50257, 768): ("wgmma 128x256x32 64x256 4", 1),
        ("tf32", 1, 30522, 768, 4096): ("wgmma 128x128x32 64x128 3", 1),
        ("tf32", 1, 50257, 768, 8192): ("wgmma 128x128x32 64x128 3", 1),
    }
}
