"""Trained networks for other programs: torch.export, ONNX, plain weights, and a card that says what they are."""
