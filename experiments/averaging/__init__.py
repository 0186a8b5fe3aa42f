"""What studies of partial averaging share: cases, schemes, programs."""
