class ConnectionClosed(Exception):
    pass
