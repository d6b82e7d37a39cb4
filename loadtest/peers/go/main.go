// peers asks a proxy for UDP (RFC 9298) and for IP (RFC 9484). It uses another implementation of
// QUIC and HTTP/3 than Braid, and compares every answer with its question.
//
//	peers udp --proxy HOST:PORT --cert FILE --key FILE --ca FILE --to HOST:PORT
//	peers ip  --proxy HOST:PORT --cert FILE --key FILE --ca FILE --to HOST:PORT
//
// Exit code 0 means that every answer was equal, and 1 an error or a wrong answer. With 2 the proxy
// refused the request, and the last line names its status.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

const (
	// Time for everything.
	patience = 30 * time.Second
	// Wait for one answer; then the question is repeated, since a datagram may be lost.
	answerMax = 250 * time.Millisecond
	triesMax  = 20
	// Packets that are large enough for a datagram of payloadMax bytes in each direction.
	initialPacketSize = 1350
	payloadMax        = 1200
	questions         = 200
)

// refused is the proxy's answer to a request that it does not serve.
type refused struct{ status int }

func (r refused) Error() string { return fmt.Sprintf("refused: %d", r.status) }

type options struct {
	proxy, name, cert, key, ca, to string
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		var status refused
		if errors.As(err, &status) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("udp or ip?")
	}
	var o options
	flags := flag.NewFlagSet(arguments[0], flag.ContinueOnError)
	flags.StringVar(&o.proxy, "proxy", "", "address of the proxy")
	flags.StringVar(&o.name, "name", "proxy", "name in the proxy's certificate")
	flags.StringVar(&o.cert, "cert", "", "own certificate; empty: none is shown")
	flags.StringVar(&o.key, "key", "", "its key")
	flags.StringVar(&o.ca, "ca", "", "authority of the proxy")
	flags.StringVar(&o.to, "to", "", "a destination that echoes UDP")
	if err := flags.Parse(arguments[1:]); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	connection, err := o.connect(ctx)
	if err != nil {
		return err
	}
	defer connection.CloseWithError(0, "")
	switch arguments[0] {
	case "udp":
		return askUDP(ctx, connection, o)
	case "ip":
		return askIP(ctx, connection, o)
	default:
		return fmt.Errorf("%q is neither udp nor ip", arguments[0])
	}
}

func (o options) connect(ctx context.Context) (*quic.Conn, error) {
	authority, err := os.ReadFile(o.ca)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s holds no certificate", o.ca)
	}
	config := &tls.Config{RootCAs: roots, ServerName: o.name, NextProtos: []string{http3.NextProtoH3}}
	if o.cert != "" {
		own, err := tls.LoadX509KeyPair(o.cert, o.key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	return quic.DialAddr(ctx, o.proxy, config, &quic.Config{
		EnableDatagrams:   true,
		InitialPacketSize: initialPacketSize,
	})
}

// payload is noise that names its number, so that late answers to other questions differ.
func payload(number int) []byte {
	source := rand.New(rand.NewPCG(1, uint64(number)))
	bytes := make([]byte, 1+source.IntN(payloadMax))
	for at := range bytes {
		bytes[at] = byte(source.Uint32())
	}
	return bytes
}

// echo asks until the answer is equal, and returns the number of answers that were not.
func echo(ctx context.Context, question []byte, send func([]byte) error, receive func(context.Context) ([]byte, error)) (int, error) {
	others := 0
	for range triesMax {
		if err := send(question); err != nil {
			return others, err
		}
		waiting, cancel := context.WithTimeout(ctx, answerMax)
		for {
			answer, err := receive(waiting)
			if err != nil {
				if ctx.Err() != nil || waiting.Err() == nil {
					cancel()
					return others, err
				}
				break
			}
			if bytes.Equal(answer, question) {
				cancel()
				return others, nil
			}
			others++
		}
		cancel()
	}
	return others, errors.New("no equal answer")
}
