"""Limits on what a peer may send, and the gRPC options that carry them.

Every figure here was chosen from measurements: a node of 8 GPUs, 192 CPUs has an inventory of
8 KB, a desired state of 8 allocations takes 2 KB. HTTP/2 keepalive only frees dead TCP
connections; liveness is the heartbeat's TTL.
"""

MAX_NODE_MESSAGE_BYTES = 1 << 20
MAX_API_MESSAGE_BYTES = 1 << 20
MAX_DEVICES = 1024
MAX_REPLICAS = 64
MAX_ASSIGNMENTS = 1024
# A report that names 1024 MIG instances takes 60 KB.
MAX_REPORT_BYTES = 64 * 1024
MAX_ID_BYTES = 256
MAX_TEXT_BYTES = 1024
MAX_NUMA_NODES = 1024
# Of all NUMA nodes together; every one of 8192 CPUs by itself takes 40 KB.
MAX_NUMA_CPULIST_BYTES = 64 * 1024

NODE_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # gRPC 1.85 ignores keepalive_timeout_ms; this one closes the connection.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 30_000),
    ("grpc.enable_retries", 0),
    # Two channels never share a connection: a renewed certificate needs a handshake of its own.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MAX_NODE_MESSAGE_BYTES),
)

NODE_SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    # Two servers on one port are a mistake that must show.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_NODE_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", 4),
)

API_SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_API_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", 1024),
)

# A page of 200 reservations with 32 long labels each takes about 4 MB.
API_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", 16 << 20),
)

PROTOCOL_VERSION = 1
MIN_PROTOCOL_VERSION = 1
