// SPDX-License-Identifier: MIT OR GPL-2.0
//
// Connects TCP sockets to endpoints of Services instead of cluster IPs, before there is a packet.
//
//   connect(cluster IP) -> frontends -> random slot -> slots -> connect(endpoint)
//                              \-- no entry, or any doubt: unchanged, so that nftables forwards the packet
//
// Which endpoints there are, and which frontends are in `frontends` at all, is decided by user space. A failure here means
// that a connection takes the rules of nftables. Compiled by `cargo xtask bpf`, without headers: all of it is below.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline)) inline
#define FIELD(name, value) int(*name)[value]

// From the kernel's interface (linux/bpf.h).
enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_PERCPU_HASH = 5, MAP_SK_STORAGE = 24 };
enum { NO_PREALLOC = 1, UPDATE_NOEXIST = 1, SK_STORAGE_CREATE = 1 };
enum { PROTOCOL_TCP = 6, PASS = 1 };

struct bpf_sock {
	u32 bound_dev_if;
	u32 family;
	u32 type;
	u32 protocol;
	u32 mark;
	u32 priority;
	u32 src_ip4;
	u32 src_ip6[4];
};

struct bpf_sock_addr {
	u32 user_family;
	u32 user_ip4;
	u32 user_ip6[4];
	u32 user_port;
	u32 family;
	u32 type;
	u32 protocol;
	u32 msg_src_ip4;
	u32 msg_src_ip6[4];
	struct bpf_sock *sk;
};

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static u64 (*ktime_ns)(void) = (void *)5;
static u32 (*random_u32)(void) = (void *)7;
static void *(*sk_storage_get)(void *map, void *sk, void *value, u64 flags) = (void *)107;
static long (*sk_storage_delete)(void *map, void *sk) = (void *)108;
static u64 (*netns_cookie)(void *ctx) = (void *)122;

// An address and a port, in network byte order; IPv4 as ::ffff:a.b.c.d.
struct address {
	u32 ip[4];
	u32 port;
};

// What a frontend leaves to nftables.
enum {
	// Sockets of pods: an endpoint is on this node, and may be the client itself.
	FRONTEND_NOT_FROM_PODS = 1,
	// Sockets of the node's own network namespace: the rules masquerade them.
	FRONTEND_NOT_FROM_NODE = 2,
};

struct frontend {
	u32 id;
	u32 slots;
	u32 flags;
};

enum { CHUNK = 8 };

struct chunk_key {
	u32 id;
	u32 number;
};

struct chunk {
	struct address slots[CHUNK];
};

struct pair {
	struct address frontend;
	struct address endpoint;
};

enum {
	// Only sockets of the node's own network namespace.
	SETTING_NODE_ONLY = 1,
};

struct settings {
	// In the time of bpf_ktime_get_ns: afterwards the node proxy is gone, and its endpoints may be.
	u64 valid_until;
	// The cookie of the node's own network namespace.
	u64 node_netns;
	u64 flags;
};

struct {
	FIELD(type, MAP_HASH);
	FIELD(map_flags, NO_PREALLOC);
	FIELD(max_entries, 65536);
	struct address *key;
	struct frontend *value;
} frontends SEC(".maps");

struct {
	FIELD(type, MAP_HASH);
	FIELD(map_flags, NO_PREALLOC);
	FIELD(max_entries, 65536);
	struct chunk_key *key;
	struct chunk *value;
} slots SEC(".maps");

struct {
	FIELD(type, MAP_PERCPU_HASH);
	FIELD(map_flags, NO_PREALLOC);
	FIELD(max_entries, 65536);
	struct pair *key;
	u64 *value;
} counts SEC(".maps");

struct {
	FIELD(type, MAP_ARRAY);
	FIELD(max_entries, 1);
	u32 *key;
	struct settings *value;
} settings SEC(".maps");

// What a rewritten socket was asked to connect to, for getpeername. Freed with the socket.
struct {
	FIELD(type, MAP_SK_STORAGE);
	FIELD(map_flags, NO_PREALLOC);
	FIELD(max_entries, 0);
	int *key;
	struct address *value;
} peers SEC(".maps");

INLINE int is_bound(struct bpf_sock *sk)
{
	return sk->src_ip4 | sk->src_ip6[0] | sk->src_ip6[1] | sk->src_ip6[2] | sk->src_ip6[3];
}

// Whether the rules of nftables may be bypassed by this socket.
INLINE int is_accelerated(struct bpf_sock_addr *ctx, struct bpf_sock *sk, const struct frontend *frontend)
{
	u32 first = 0;
	struct settings *set = map_lookup(&settings, &first);
	if (!set || ktime_ns() > set->valid_until)
		return 0;
	if (netns_cookie(ctx) != set->node_netns)
		return !(set->flags & SETTING_NODE_ONLY) && !(frontend->flags & FRONTEND_NOT_FROM_PODS);
	if (!(frontend->flags & FRONTEND_NOT_FROM_NODE))
		return 1;
	// The kernel chooses the source address of an unbound socket after this, by the route to the endpoint, as
	// masquerading would.
	return (set->flags & SETTING_NODE_ONLY) && !is_bound(sk);
}

INLINE void count(const struct address *frontend, const struct address *endpoint)
{
	struct pair pair = { *frontend, *endpoint };
	u64 *sum = map_lookup(&counts, &pair), one = 1;
	if (sum)
		*sum += 1;
	else
		map_update(&counts, &pair, &one, UPDATE_NOEXIST);
}

// The endpoint that a socket is connected to instead of `to`.
INLINE struct address *choose(struct bpf_sock_addr *ctx, struct address *to)
{
	struct bpf_sock *sk = ctx->sk;
	if (!sk)
		return 0;
	struct frontend *frontend = map_lookup(&frontends, to);
	struct address *endpoint = 0;
	if (frontend && frontend->slots && is_accelerated(ctx, sk, frontend)) {
		u32 slot = random_u32() % frontend->slots;
		struct chunk_key key = { frontend->id, slot / CHUNK };
		struct chunk *chunk = map_lookup(&slots, &key);
		if (chunk)
			endpoint = &chunk->slots[slot % CHUNK];
	}
	// A socket may be connected again, and without this no longer shows the earlier address.
	if (!endpoint || !endpoint->port) {
		sk_storage_delete(&peers, sk);
		return 0;
	}
	struct address *peer = sk_storage_get(&peers, sk, 0, SK_STORAGE_CREATE);
	if (!peer)
		return 0;
	*peer = *to;
	count(to, endpoint);
	return endpoint;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	if (ctx->protocol != PROTOCOL_TCP)
		return PASS;
	struct address to = { { 0, 0, 0xffff0000, ctx->user_ip4 }, ctx->user_port };
	struct address *endpoint = choose(ctx, &to);
	if (endpoint) {
		ctx->user_ip4 = endpoint->ip[3];
		ctx->user_port = endpoint->port;
	}
	return PASS;
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	if (ctx->protocol != PROTOCOL_TCP)
		return PASS;
	struct address to = { { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] },
			      ctx->user_port };
	struct address *endpoint = choose(ctx, &to);
	if (endpoint) {
		ctx->user_ip6[0] = endpoint->ip[0];
		ctx->user_ip6[1] = endpoint->ip[1];
		ctx->user_ip6[2] = endpoint->ip[2];
		ctx->user_ip6[3] = endpoint->ip[3];
		ctx->user_port = endpoint->port;
	}
	return PASS;
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	struct address *peer = ctx->sk ? sk_storage_get(&peers, ctx->sk, 0, 0) : 0;
	if (peer) {
		ctx->user_ip4 = peer->ip[3];
		ctx->user_port = peer->port;
	}
	return PASS;
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	struct address *peer = ctx->sk ? sk_storage_get(&peers, ctx->sk, 0, 0) : 0;
	if (peer) {
		ctx->user_ip6[0] = peer->ip[0];
		ctx->user_ip6[1] = peer->ip[1];
		ctx->user_ip6[2] = peer->ip[2];
		ctx->user_ip6[3] = peer->ip[3];
		ctx->user_port = peer->port;
	}
	return PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
