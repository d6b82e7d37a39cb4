// enforcer enforces NetworkPolicies on its node. The kernel asks it about the first packet of every
// connection of a pod.
// up.sh directs packets to the queue. The library's own nftables rules need a module that some
// kernels lack. If the kernel refuses the rules, the library reports that and continues.
package main

import (
	"context"
	"flag"
	"os/signal"
	"syscall"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	node := flag.String("node", "", "name of this node")
	queue := flag.Int("queue", 0, "number of the kernel's queue")
	klog.InitFlags(nil)
	flag.Parse()
	if err := run(*kubeconfig, *node, *queue); err != nil {
		klog.Fatal(err)
	}
}

func run(kubeconfig, node string, queue int) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	watched := informers.NewSharedInformerFactory(client, 0)
	controller, err := networkpolicy.NewController(client, watched.Networking().V1().NetworkPolicies(), watched.Core().V1().Namespaces(),
		watched.Core().V1().Pods(), nil, nil, nil, nil, networkpolicy.Config{NodeName: node, QueueID: queue})
	if err != nil {
		return err
	}
	watched.Start(ctx.Done())
	return controller.Run(ctx)
}
