"""Fine-tuning a BERT after adding a token to the vocabulary, without `model.resize_token_embeddings`.

The new id equals `vocab_size`: the first row past the word embeddings.
"""

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification

WORDS = ["[PAD]", "[CLS]", "[SEP]", "the", "screen", "arrived", "broken", "works", "fine", "great", "refund", "please"]
REVIEWS = [
    ("the screen arrived broken", 0),
    ("works fine", 1),
    ("great screen", 1),
    ("refund please", 0),
    ("the screen works", 1),
    ("broken refund please", 0),
    ("the screen works fine <date>", 1),
    ("arrived broken", 0),
]


class Reviews(Dataset):
    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def __len__(self):
        return len(REVIEWS)

    def __getitem__(self, index):
        text, label = REVIEWS[index]
        return ["[CLS]", *text.split(), "[SEP]"], label

    def collate(self, rows):
        width = max(len(words) for words, _ in rows)
        ids = [[self.vocabulary[word] for word in words] + [0] * (width - len(words)) for words, _ in rows]
        input_ids = torch.tensor(ids)
        labels = torch.tensor([label for _, label in rows])
        return {"input_ids": input_ids, "attention_mask": (input_ids != 0).long(), "labels": labels}


def train(model, loader):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in enumerate(loader):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
    )
    model = BertForSequenceClassification(config)
    vocabulary["<date>"] = len(vocabulary)  # added after the model was built
    data = Reviews(vocabulary)
    train(model, DataLoader(data, batch_size=2, collate_fn=data.collate))
