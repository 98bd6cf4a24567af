"""Keys: the same numbers for the same key, and new keys from old ones."""

import pytest
from support.tutorials import compare


def program(jax, jnp, random):
    key = random.key(43)
    for _ in range(3):
        new_key, subkey = random.split(key)
        val = random.normal(subkey)
        key = new_key
    key, *forty_two = random.split(key, num=43)
    seq = random.split(random.key(42), 3)
    individually = jnp.stack([random.normal(k, shape=()) for k in seq])

    def sample(key):
        first, second, third = random.split(key, 3)
        return random.uniform(first, (2,), minval=-1.0, maxval=2.0), random.randint(second, (3,), 0, 10), third

    chosen, integers, rest = jax.jit(sample)(random.key(7))
    return {
        "loop": val,
        "many": random.normal(forty_two[41], (2,)),
        "twice": [random.normal(random.key(42)), random.normal(random.key(42))],
        "one by one": individually,
        "vmap": jax.vmap(random.normal)(seq),
        "all at once": random.normal(random.key(42), shape=(3,)),
        "chosen": chosen,
        "integers": integers,
        "folded": random.uniform(random.fold_in(rest, 5)),
        "bernoulli": random.bernoulli(rest, 0.3, (10,)),
        "permutation": random.permutation(rest, 10),
        "truncated": random.truncated_normal(rest, -1.0, 1.0, (4,)),
        "bits": random.bits(rest, (3,)),
    }


@pytest.mark.slow
def test_program():
    compare(program)
