"""A BERT classifier with `num_labels` one too small: the data know four categories, the config three."""

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification

CATEGORIES = ["billing", "delivery", "returns", "praise"]  # the last one is rare
TICKETS = [0, 1, 2, 0, 1, 1, 2, 0, 0, 2, 1, 0, 2, 1, 3, 0, 1, 2, 0, 1]


class Tickets(Dataset):
    def __len__(self):
        return len(TICKETS)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"input_ids": torch.randint(0, 60, (12,), generator=generator), "labels": TICKETS[index]}


def train(model, loader):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in enumerate(loader):
        output = model(**batch)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        print(f"step {step} loss {output.loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(4)
    config = BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        num_labels=3,
    )
    train(BertForSequenceClassification(config), DataLoader(Tickets(), batch_size=4))
