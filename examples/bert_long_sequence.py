"""A BERT for tagging, fed with documents packed into one row each; one is longer than `max_position_embeddings`."""

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForTokenClassification

LONGEST = 32
LENGTHS = [9, 30, 17, 24, 12, 31, 28, 35, 20, 16]  # the eighth document was not truncated


class Documents(Dataset):
    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(1, 50, (LENGTHS[index],), generator=generator)
        return {"input_ids": ids, "labels": ids % 3}


def collate(rows):
    width = max(len(row["input_ids"]) for row in rows)
    batch = {
        "input_ids": torch.zeros(len(rows), width, dtype=torch.long),
        "labels": torch.full((len(rows), width), -100),
        "token_type_ids": torch.zeros(len(rows), width, dtype=torch.long),
        "position_ids": torch.arange(width).repeat(len(rows), 1),
    }
    for number, row in enumerate(rows):
        for name in ("input_ids", "labels"):
            batch[name][number, : len(row[name])] = row[name]
    return batch


def train(model, loader):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in enumerate(loader):
        output = model(attention_mask=(batch["input_ids"] != 0).long(), **batch)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        print(f"step {step} width {batch['input_ids'].shape[1]} loss {output.loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LONGEST,
        num_labels=3,
    )
    train(BertForTokenClassification(config), DataLoader(Documents(), batch_size=1, collate_fn=collate))
