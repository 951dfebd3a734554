"""An HTTP server on blocking sockets, one thread a connection: it says by an alert why it ends a TLS handshake, where
asyncio's server just hangs up, and answers what is no HTTP."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LINGER = 5.0  # seconds


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, format: str, *args: Any) -> None:
        return


class _Server(ThreadingHTTPServer):
    tls: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, the handshake too."""
        try:
            if self.tls is not None:
                request = self.tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
                _shake_hands(request)
            super().finish_request(request, client_address)
        except OSError:
            pass  # a handshake that failed, or a client that went away
        finally:
            request.close()


def _shake_hands(request: ssl.SSLSocket) -> None:
    """Where it fails, the client has sent a request by then (TLS 1.3): closed with that unread, the connection would be
    reset, and the alert lost. Real servers linger, too."""
    try:
        request.do_handshake()
    except ssl.SSLError:
        request.shutdown(socket.SHUT_WR)
        request.settimeout(LINGER)
        while request.recv(65_536):
            pass
        raise


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port on 127.0.0.1."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.tls = tls
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
