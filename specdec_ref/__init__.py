"""Exact speculative decoding, compact enough to read in one sitting."""
