"""A small GPT that diverged in training, then samples: NaN logits reach `torch.multinomial` inside `generate`."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

TEXT = "to be or not to be that is the question whether tis nobler in the mind to suffer "
CHARACTERS = sorted(set(TEXT))


def train(model, ids, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(6):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


def write(model, start):
    model.eval()
    ids = model.generate(
        start, attention_mask=torch.ones_like(start), max_new_tokens=20, do_sample=True, pad_token_id=model.config.eos_token_id
    )
    return "".join(CHARACTERS[number] for number in ids[0])


if __name__ == "__main__":
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(CHARACTERS), n_positions=128, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    ids = torch.tensor([[CHARACTERS.index(character) for character in TEXT]])
    train(model, ids, lr=1e6)  # meant to be 1e-2
    print(write(model, ids[:, :6]))
