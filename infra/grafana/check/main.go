// check validates dashboards against Grafana's own schema. A field that is unknown, missing or of a
// wrong type is an error. The schema covers the options of each kind of panel and the queries of
// each data source.
//
// 	go run . FILE...
//	go run . FILE...
package main

import (
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	plugins.RegisterDefaultPlugins()
	failed := len(os.Args) < 2
	for _, file := range os.Args[1:] {
		if err := check(file); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", file, err)
			failed = true
		} else {
			fmt.Printf("%s: fits the schema\n", file)
		}
	}
	if failed {
		os.Exit(1)
	}
}

func check(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	read := dashboard.Dashboard{}
	if err := read.UnmarshalJSONStrict(text); err != nil {
		return err
	}
	return read.Validate()
}
