"""Text, character by character: a recurrent network that predicts the next character."""

from __future__ import annotations

from torch import Tensor, nn

from normec.data.alphabet import ALPHABET


class CharLM(nn.Module):
    """Predicts the next character after a window: an embedding of 32 numbers, one LSTM with 96 units, one linear layer on its last state.

    The task is LEAF's on Shakespeare (Caldas et al. 2018), the network a smaller one. d = 62,433.

    Raises:
        ValueError: for samples that are not windows of text, or other classes than the alphabet's.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if len(input_shape) != 1 or classes != len(ALPHABET):
            problem = f"samples of shape {input_shape} in {classes} classes are not windows of text"
            raise ValueError(f"{problem}: shape (length,), {len(ALPHABET)} classes")
        self.embedding = nn.Embedding(len(ALPHABET), 32)
        self.lstm = nn.LSTM(32, 96, batch_first=True)
        self.head = nn.Linear(96, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes) of the characters that follow windows of codes (n, length)."""
        states, _ = self.lstm(self.embedding(x))
        logits: Tensor = self.head(states[:, -1])
        return logits
