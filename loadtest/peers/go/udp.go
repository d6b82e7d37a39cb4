package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/quic-go/quicvarint"
)

// askUDP echoes datagrams of many sizes through one CONNECT-UDP request.
func askUDP(ctx context.Context, connection *quic.Conn, o options) error {
	host, port, err := net.SplitHostPort(o.to)
	if err != nil {
		return err
	}
	transport := &http3.Transport{EnableDatagrams: true}
	client := transport.NewClientConn(connection)
	select {
	case <-client.ReceivedSettings():
	case <-client.Context().Done():
		return context.Cause(client.Context())
	case <-ctx.Done():
		return ctx.Err()
	}
	if settings := client.Settings(); !settings.EnableExtendedConnect || !settings.EnableDatagrams {
		return errors.New("the proxy offers no extended CONNECT with datagrams")
	}
	stream, err := client.OpenRequestStream(ctx)
	if err != nil {
		return err
	}
	// RFC 9298, 3.4.
	path := fmt.Sprintf("/.well-known/masque/udp/%s/%s/", url.PathEscape(host), port)
	request := (&http.Request{
		Method: http.MethodConnect,
		Proto:  "connect-udp",
		Host:   o.proxy,
		Header: http.Header{http3.CapsuleProtocolHeader: {"?1"}},
		URL:    &url.URL{Scheme: "https", Host: o.proxy, Path: path},
	}).WithContext(ctx)
	if err := stream.SendRequestHeader(request); err != nil {
		return err
	}
	response, err := stream.ReadResponse()
	if err != nil {
		return err
	}
	if response.StatusCode/100 != 2 {
		return refused{response.StatusCode}
	}
	send := func(question []byte) error {
		// The context of UDP payloads (RFC 9298, 4).
		return stream.SendDatagram(append(quicvarint.Append(nil, 0), question...))
	}
	receive := func(ctx context.Context) ([]byte, error) {
		datagram, err := stream.ReceiveDatagram(ctx)
		if err != nil {
			return nil, err
		}
		kind, length, err := quicvarint.Parse(datagram)
		if err != nil {
			return nil, err
		}
		if kind != 0 {
			return nil, fmt.Errorf("a datagram of context %d", kind)
		}
		return datagram[length:], nil
	}
	differing := 0
	for number := range questions {
		others, err := echo(ctx, payload(number), send, receive)
		if err != nil {
			return fmt.Errorf("datagram %d: %w", number, err)
		}
		differing += others
	}
	if differing > questions/10 {
		return fmt.Errorf("%d answers differ from their question", differing)
	}
	fmt.Printf("udp: %d datagrams echoed by %s\n", questions, o.to)
	return nil
}
