"""Text classification with `nn.EmbeddingBag`; the collate function adds up the lengths before it drops the unknown words."""

import torch
from torch import nn
from torch.utils.data import DataLoader

WORDS = {"goal": 0, "match": 1, "team": 2, "election": 3, "vote": 4, "market": 5, "share": 6, "price": 7}
KNOWN = [("team goal", 0), ("election vote", 1), ("share price", 2), ("goal match", 0), ("market share", 2), ("vote", 1)]
HEADLINES = KNOWN * 3 + [
    ("team wins match", 0),  # "wins" is counted, then dropped
    ("vote in election", 1),
    ("share price falls", 2),
    ("goal", 0),
    ("market price", 2),
    ("election", 1),
]


def collate(batch):
    words = [headline.split() for headline, _ in batch]
    lengths = torch.tensor([len(row) for row in words])
    ids = torch.tensor([WORDS[word] for row in words for word in row if word in WORDS])
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths[:-1].cumsum(0)])
    return ids, offsets, torch.tensor([label for _, label in batch])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(len(WORDS), 16, mode="mean")
        self.out = nn.Linear(16, 3)

    def forward(self, ids, offsets):
        return self.out(self.bag(ids, offsets))


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step, (ids, offsets, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(ids, offsets), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    train(Classifier(), DataLoader(HEADLINES, batch_size=6, collate_fn=collate))
