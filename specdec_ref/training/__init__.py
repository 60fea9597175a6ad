"""The recipes that made the weights in `models/`: teacher text, distillation and heads, each re-runnable and seeded."""
