"""Nodes: what holds variables and other nodes, our own and registered ones."""
