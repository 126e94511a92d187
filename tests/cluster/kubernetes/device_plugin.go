package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// neighbour is a device plugin with devices of no hardware: what a driver beside Aliquot is to the kubelet.
type neighbour struct {
	api.UnimplementedDevicePluginServer
	devices []*api.Device
}

// devicePlugin serves one device of a resource until it is ended: `device-plugin DIRECTORY RESOURCE`, where DIRECTORY is
// the kubelet's for device plugins. A container with the device has it in the variable NEIGHBOUR.
func devicePlugin(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("found %d arguments, expected DIRECTORY RESOURCE", len(args))
	}
	directory, resource := args[0], args[1]
	socket := strings.ReplaceAll(resource, "/", "-") + ".sock"
	path := filepath.Join(directory, socket)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	devices := []*api.Device{{ID: "device-0", Health: api.Healthy}}
	api.RegisterDevicePluginServer(server, &neighbour{devices: devices})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	kubelet, err := grpc.NewClient("unix:"+filepath.Join(directory, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer kubelet.Close()
	request := &api.RegisterRequest{Version: api.Version, Endpoint: socket, ResourceName: resource}
	if _, err := api.NewRegistrationClient(kubelet).Register(context.Background(), request); err != nil {
		return err
	}
	return <-ended
}

func (n *neighbour) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (n *neighbour) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: n.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (n *neighbour) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		ids := strings.Join(container.DevicesIds, ",")
		answer.ContainerResponses = append(answer.ContainerResponses,
			&api.ContainerAllocateResponse{Envs: map[string]string{"NEIGHBOUR": ids}})
	}
	return answer, nil
}
