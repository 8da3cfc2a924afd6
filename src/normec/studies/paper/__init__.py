"""The experiments of the paper (Section 6, Appendix A): figures 1–4 as sweeps, and their pictures."""
