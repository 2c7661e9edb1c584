"""Sockets, requests and answers: everything between the network and the handlers."""
