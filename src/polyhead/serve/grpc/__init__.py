"""The Open Inference Protocol over gRPC, of the extra `grpc`: the same queue, keys and limits as over HTTP."""
