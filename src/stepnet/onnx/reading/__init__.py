"""ONNX files as torch modules: one table of operators, a function for each."""
