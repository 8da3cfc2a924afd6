"""Secure aggregation: a server learns the sum of its clients' vectors, and no vector.

Double masks on a complete graph (Bonawitz et al. 2017, *Practical secure aggregation for privacy-preserving machine learning*), with
identities that the owners of the data pin, and a rule on survivors that each client checks alone and that holds against a server that
tells every client another story. Pure state machines: nothing here knows of networks, files or torch.
"""
