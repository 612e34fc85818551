"""The bytes that each host's link carries in one attention, from the rules by which the program divides tokens and heads
(src/parallel/shards.h, exchange.h, ring.h). Compared with the links' counters, to show that messages between hosts took
the link and messages within a host did not."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Problem:
    batch: int
    tokens: int
    heads: int
    head_dim: int
    element_bytes: int

    @property
    def shape(self):
        return f"{self.batch}x{self.tokens}x{self.heads}x{self.head_dim}"


def share(count, parts, index):
    """Size of part `index` of `count` things in `parts` parts."""
    return (index + 1) * count // parts - index * count // parts


def messages(problem, ulysses, ring):
    """(from, to, bytes) of one run with a forward ring; ranks of a Ulysses group are neighbours."""
    row = problem.batch * problem.head_dim * problem.element_bytes  # of one token and head
    ranks = ulysses * ring
    tokens = [share(problem.tokens, ranks, rank) for rank in range(ranks)]
    heads = [share(problem.heads, ulysses, rank % ulysses) for rank in range(ranks)]
    for rank in range(ranks):
        block, index = divmod(rank, ulysses)
        for peer in range(block * ulysses, (block + 1) * ulysses):
            if peer != rank:
                yield rank, peer, 3 * tokens[rank] * heads[peer] * row  # q, k, v
                yield rank, peer, tokens[peer] * heads[rank] * row      # o
        for hop in range(ring - 1):
            travelling = share(problem.tokens, ring, (block - hop) % ring)
            yield rank, (block + 1) % ring * ulysses + index, 2 * travelling * heads[rank] * row  # k, v


def link_bytes(problem, ulysses, ring, ranks_per_host):
    """[(sent, received)] of each host in one run."""
    hosts = ulysses * ring // ranks_per_host
    sent, received = [0] * hosts, [0] * hosts
    for source, target, size in messages(problem, ulysses, ring):
        source, target = source // ranks_per_host, target // ranks_per_host
        if source != target:
            sent[source] += size
            received[target] += size
    return list(zip(sent, received))


def ring_bytes(problem, ranks):
    """What the busiest rank sends where all ranks form one ring."""
    sent = [0] * ranks
    for source, _, size in messages(problem, 1, ranks):
        sent[source] += size
    return max(sent)
