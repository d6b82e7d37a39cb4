package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/netip"

	connectip "github.com/quic-go/connect-ip-go"
	"github.com/quic-go/quic-go"
	"github.com/yosida95/uritemplate/v3"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
)

const (
	// A source port of the packets that the client writes itself.
	ownPort = 40_000
	// Number of the pings, for their answers.
	pingID    = 7
	hopLimit  = 64
	udpHeader = 8
	packetMax = 2_048
	// Packets that wait to be looked at; further ones are dropped.
	packetsMax = 64

	protocolICMP = 1
	protocolUDP  = 17
)

// tunnel is a CONNECT-IP request, with the address that the proxy assigned.
type tunnel struct {
	connection *connectip.Conn
	own        netip.Addr
	to         netip.AddrPort
	packets    chan []byte
}

// askIP asks for an address, and echoes pings and UDP datagrams as IPv4 packets from it.
func askIP(ctx context.Context, connection *quic.Conn, o options) error {
	to, err := netip.ParseAddrPort(o.to)
	if err != nil {
		return err
	}
	template, err := uritemplate.New(fmt.Sprintf("https://%s/.well-known/masque/ip/*/*/", o.proxy))
	if err != nil {
		return err
	}
	request, err := connectip.NewRequest(ctx, template)
	if err != nil {
		return err
	}
	client, err := (&connectip.Transport{}).NewClientConn(connection)
	if err != nil {
		return err
	}
	ip, response, err := client.Dial(request)
	if err != nil {
		if response != nil && response.StatusCode/100 != 2 {
			return refused{response.StatusCode}
		}
		return err
	}
	defer ip.Close()
	t := tunnel{connection: ip, to: to, packets: make(chan []byte, packetsMax)}
	if err := t.agree(ctx, response); err != nil {
		return err
	}
	go t.read()
	pings, err := t.converse(ctx, t.ping, t.pinged)
	if err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	datagrams, err := t.converse(ctx, t.datagram, t.told)
	if err != nil {
		return fmt.Errorf("UDP: %w", err)
	}
	fmt.Printf("ip: %s got %d pings and %d datagrams back from %s\n", t.own, pings, datagrams, to)
	return nil
}

// agree asks for any IPv4 address, and checks that the proxy advertises a route to the destination.
func (t *tunnel) agree(ctx context.Context, response *http.Response) error {
	if response.Header.Get("Capsule-Protocol") != "?1" {
		return errors.New("the answer does not say that capsules follow")
	}
	any := netip.PrefixFrom(netip.IPv4Unspecified(), 32)
	ids, err := t.connection.RequestAddresses([]netip.Prefix{any})
	if err != nil {
		return err
	}
	assigned, err := t.connection.ReceiveAddressAssignment(ctx)
	if err != nil {
		return err
	}
	if len(assigned) != 1 || assigned[0].RequestID != ids[0] || assigned[0].Rejected() {
		return fmt.Errorf("assigned %+v for request %v", assigned, ids)
	}
	t.own = assigned[0].IPPrefix.Addr()
	routes, err := t.connection.Routes(ctx)
	if err != nil {
		return err
	}
	for _, route := range routes {
		if route.StartIP.Compare(t.to.Addr()) <= 0 && t.to.Addr().Compare(route.EndIP) <= 0 {
			return nil
		}
	}
	return fmt.Errorf("no route to %s in %v", t.to, routes)
}

// converse echoes every payload, wrapped into a packet and unwrapped from its answer. An answer to
// another question unwraps to nothing.
func (t *tunnel) converse(ctx context.Context, wrap func(int, []byte) ([]byte, error), unwrap func(int, []byte) []byte) (int, error) {
	for number := range questions {
		send := func(question []byte) error {
			packet, err := wrap(number, question)
			if err != nil {
				return err
			}
			tooLarge, err := t.connection.WritePacket(packet)
			if err == nil && tooLarge != nil {
				return fmt.Errorf("a packet of %d bytes does not fit", len(packet))
			}
			return err
		}
		receive := func(waiting context.Context) ([]byte, error) {
			select {
			case packet, open := <-t.packets:
				if !open {
					return nil, errors.New("the tunnel has ended")
				}
				return unwrap(number, packet), nil
			case <-waiting.Done():
				return nil, waiting.Err()
			}
		}
		if _, err := echo(ctx, payload(number), send, receive); err != nil {
			return number, fmt.Errorf("packet %d: %w", number, err)
		}
	}
	return questions, nil
}

// read hands packets on until the tunnel ends; packets beyond the bound are dropped.
func (t *tunnel) read() {
	defer close(t.packets)
	for {
		packet := make([]byte, packetMax)
		length, err := t.connection.ReadPacket(packet)
		if err != nil {
			return
		}
		select {
		case t.packets <- packet[:length]:
		default:
		}
	}
}

func (t *tunnel) packet(protocol int, body []byte) ([]byte, error) {
	header := ipv4.Header{
		Version:  ipv4.Version,
		Len:      ipv4.HeaderLen,
		TotalLen: ipv4.HeaderLen + len(body),
		TTL:      hopLimit,
		Protocol: protocol,
		Src:      t.own.AsSlice(),
		Dst:      t.to.Addr().AsSlice(),
	}
	bytes, err := header.Marshal()
	if err != nil {
		return nil, err
	}
	sum := checksum(bytes)
	bytes[10], bytes[11] = byte(sum>>8), byte(sum)
	return append(bytes, body...), nil
}

// checksum of RFC 1071, over an even number of bytes.
func checksum(bytes []byte) uint16 {
	sum := uint32(0)
	for at := 0; at+1 < len(bytes); at += 2 {
		sum += uint32(binary.BigEndian.Uint16(bytes[at:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// body returns what an answer from the destination carries, or nothing.
func (t *tunnel) body(packet []byte, protocol int) []byte {
	header, err := ipv4.ParseHeader(packet)
	if err != nil || header.Protocol != protocol || header.TotalLen != len(packet) {
		return nil
	}
	from, to := header.Src.Equal(t.to.Addr().AsSlice()), header.Dst.Equal(t.own.AsSlice())
	if !from || !to || checksum(packet[:header.Len]) != 0 {
		return nil
	}
	return packet[header.Len:]
}

func (t *tunnel) ping(number int, payload []byte) ([]byte, error) {
	message := icmp.Message{
		Type: ipv4.ICMPTypeEcho,
		Body: &icmp.Echo{ID: pingID, Seq: number, Data: payload},
	}
	body, err := message.Marshal(nil)
	if err != nil {
		return nil, err
	}
	return t.packet(protocolICMP, body)
}

func (t *tunnel) pinged(number int, packet []byte) []byte {
	message, err := icmp.ParseMessage(protocolICMP, t.body(packet, protocolICMP))
	if err != nil || message.Type != ipv4.ICMPTypeEchoReply {
		return nil
	}
	reply, is := message.Body.(*icmp.Echo)
	if !is || reply.ID != pingID || reply.Seq != number {
		return nil
	}
	return reply.Data
}

// datagram has no checksum, which IPv4 permits.
func (t *tunnel) datagram(_ int, payload []byte) ([]byte, error) {
	body := make([]byte, udpHeader, udpHeader+len(payload))
	binary.BigEndian.PutUint16(body[0:], ownPort)
	binary.BigEndian.PutUint16(body[2:], t.to.Port())
	binary.BigEndian.PutUint16(body[4:], uint16(udpHeader+len(payload)))
	return t.packet(protocolUDP, append(body, payload...))
}

func (t *tunnel) told(_ int, packet []byte) []byte {
	body := t.body(packet, protocolUDP)
	if len(body) < udpHeader || int(binary.BigEndian.Uint16(body[4:])) != len(body) {
		return nil
	}
	from, to := binary.BigEndian.Uint16(body[0:]), binary.BigEndian.Uint16(body[2:])
	if from != t.to.Port() || to != ownPort {
		return nil
	}
	return body[udpHeader:]
}
